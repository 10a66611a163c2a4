#!/bin/bash
# The reward is the share of hidden cases that pass.
python3 -B /tests/grade.py
