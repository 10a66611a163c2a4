#!/bin/bash
sed -i 's/^rate .*/rate = 47/' oar.conf
