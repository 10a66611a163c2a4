#!/bin/bash
grep pilot wave.log > mast.txt
