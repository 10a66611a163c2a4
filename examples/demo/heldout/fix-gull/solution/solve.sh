#!/bin/bash
cat gull.py
sed -i 's/return .*/return a * b/' gull.py
