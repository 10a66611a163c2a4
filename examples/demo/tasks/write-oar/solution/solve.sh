#!/bin/bash
echo heavy beacon 38 > oar.txt
