#!/bin/bash
sed -i 's/^speed .*/speed = 24/' coast.conf
