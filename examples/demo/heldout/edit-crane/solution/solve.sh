#!/bin/bash
sed -i 's/^rate .*/rate = 23/' crane.conf
