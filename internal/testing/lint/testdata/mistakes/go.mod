module example.com/mistakes

go 1.26.0
