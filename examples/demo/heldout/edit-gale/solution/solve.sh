#!/bin/bash
sed -i 's/^angle .*/angle = 20/' gale.conf
