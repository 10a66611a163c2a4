#!/bin/bash
sed -i 's/^height .*/height = 17/' fog.conf
