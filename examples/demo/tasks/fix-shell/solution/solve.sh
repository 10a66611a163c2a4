#!/bin/bash
cat shell.py
sed -i 's/return .*/return a * b/' shell.py
