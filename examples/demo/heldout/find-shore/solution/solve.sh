#!/bin/bash
grep harbor shore.log > mast.txt
