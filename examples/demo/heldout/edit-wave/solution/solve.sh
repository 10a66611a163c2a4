#!/bin/bash
sed -i 's/^width .*/width = 57/' wave.conf
