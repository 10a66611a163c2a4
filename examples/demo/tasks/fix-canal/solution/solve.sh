#!/bin/bash
cat canal.py
sed -i 's/return .*/return a + b/' canal.py
