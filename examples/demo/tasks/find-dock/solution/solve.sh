#!/bin/bash
grep pier dock.log > mast.txt
