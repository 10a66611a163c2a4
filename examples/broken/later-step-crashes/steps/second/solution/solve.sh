#!/bin/bash
echo two >/app/second.txt
