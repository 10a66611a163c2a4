#!/bin/bash
sed -i 's/^height .*/height = 36/' gale.conf
