// Empty: emulated.h defines the types of half precision.
#pragma once
