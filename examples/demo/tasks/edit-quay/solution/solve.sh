#!/bin/bash
sed -i 's/^width .*/width = 22/' quay.conf
