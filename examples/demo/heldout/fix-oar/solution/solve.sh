#!/bin/bash
cat oar.py
sed -i 's/return .*/return a + b/' oar.py
