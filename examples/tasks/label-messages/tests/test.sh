#!/bin/bash
# Writes reward.json: the reward, with precision, recall and coverage beside it.
python3 -B /tests/grade.py
