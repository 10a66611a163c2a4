#!/bin/bash
sed -i 's/^speed .*/speed = 28/' crew.conf
