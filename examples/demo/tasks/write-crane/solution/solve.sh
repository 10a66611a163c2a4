#!/bin/bash
echo red pilot 39 > crane.txt
