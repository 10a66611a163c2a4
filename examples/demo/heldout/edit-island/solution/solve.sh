#!/bin/bash
sed -i 's/^color .*/color = 22/' island.conf
