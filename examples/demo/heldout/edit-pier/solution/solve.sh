#!/bin/bash
sed -i 's/^depth .*/depth = 22/' pier.conf
