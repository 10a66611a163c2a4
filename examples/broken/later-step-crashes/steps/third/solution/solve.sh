#!/bin/bash
echo three >/app/third.txt
