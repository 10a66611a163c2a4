#!/bin/bash
echo broad bridge 33 > boat.txt
