#!/bin/bash
set -e
cp /app/greeting.txt /app/hello.txt
