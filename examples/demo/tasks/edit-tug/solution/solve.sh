#!/bin/bash
sed -i 's/^speed .*/speed = 50/' tug.conf
