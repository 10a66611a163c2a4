#!/bin/bash
echo white crane 49 > rope.txt
