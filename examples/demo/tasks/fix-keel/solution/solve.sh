#!/bin/bash
cat keel.py
sed -i 's/return .*/return a * b/' keel.py
