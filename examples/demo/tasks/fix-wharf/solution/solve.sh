#!/bin/bash
cat wharf.py
sed -i 's/return .*/return a * b/' wharf.py
