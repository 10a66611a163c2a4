#!/bin/bash
echo quiet wave 18 > island.txt
