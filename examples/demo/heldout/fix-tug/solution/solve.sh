#!/bin/bash
cat tug.py
sed -i 's/return .*/return a * b/' tug.py
