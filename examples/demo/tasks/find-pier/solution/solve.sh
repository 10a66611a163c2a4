#!/bin/bash
grep chain pier.log > tide.txt
