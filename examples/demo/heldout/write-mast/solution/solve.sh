#!/bin/bash
echo blue harbor 43 > mast.txt
