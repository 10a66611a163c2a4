#!/bin/bash
echo bright harbor 17 > rudder.txt
