#!/bin/bash
cat crane.py
sed -i 's/return .*/return a + b/' crane.py
