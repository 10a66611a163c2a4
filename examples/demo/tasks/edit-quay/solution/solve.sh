#!/bin/bash
sed -i 's/^depth .*/depth = 40/' quay.conf
