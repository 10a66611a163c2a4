#!/bin/bash
sed -i 's/^height .*/height = 54/' wharf.conf
