#!/bin/bash
cat cabin.py
sed -i 's/return .*/return a + b/' cabin.py
