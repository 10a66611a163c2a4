#!/bin/bash
cat buoy.py
sed -i 's/return .*/return a * b/' buoy.py
