#!/bin/bash
cat island.py
sed -i 's/return .*/return a * b/' island.py
