#!/bin/bash
cat gale.py
sed -i 's/return .*/return a + b/' gale.py
