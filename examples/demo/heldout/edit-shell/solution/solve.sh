#!/bin/bash
sed -i 's/^level .*/level = 25/' shell.conf
