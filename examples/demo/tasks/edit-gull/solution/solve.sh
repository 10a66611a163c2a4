#!/bin/bash
sed -i 's/^mode .*/mode = 28/' gull.conf
