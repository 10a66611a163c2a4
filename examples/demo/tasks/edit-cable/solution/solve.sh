#!/bin/bash
sed -i 's/^rate .*/rate = 18/' cable.conf
