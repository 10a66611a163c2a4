#!/bin/bash
sed -i 's/^port .*/port = 25/' beacon.conf
