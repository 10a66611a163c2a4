#!/bin/bash
cat tide.py
sed -i 's/return .*/return a + b/' tide.py
