# What all plots share. Called as
#   gnuplot -e "name='slope'; results='results'; lessons='data/lessons'" plots/slope.gp
# A plot reads results/<name>.csv (and _fit), the lessons' published tables, and nothing else; it measures nothing.

csv = results.'/'.name.'.csv'
fit = results.'/'.name.'_fit.csv'
readable(file) = int(system("[ -r '".file."' ] && echo 1 || echo 0"))
rows(file) = readable(file) ? int(system("sed 1d '".file."' | grep -c . || :")) : 0
if (rows(csv) == 0) {
    print csv.': no rows, so no plot'
    exit status 0
}

set datafile separator comma
set datafile columnheaders
set datafile missing NaN      # an empty cell leaves a gap in the points, not in the line through its neighbours

# ---- cells, by column name; an empty one is NaN (strcol would fail on one at the end of a row)
num(column_name) = column(column_name)
KiB = 1024.0
MiB = 1048576.0
MB = 1e6

# ---- series: rows of one model, device and dtype belong together; `series` lists them as quoted words
series_key(m, d, t) = m.', '.d.', '.t
has_word(list, w) = strstrt(list, '"'.w.'"')
add_word(list, w) = has_word(list, w) ? list : list.'"'.w.'" '
row_key = "series_key(strcol('model'), strcol('device'), strcol('dtype'))"
in_series(w, value) = series_key(strcol('model'), strcol('device'), strcol('dtype')) eq w ? value : NaN
known(x) = x == x             # not NaN
# gnuplot warns of a column without any value: it is plotted off the picture (a logarithmic axis needs another place).
off_scale = -1e9
given(count, x) = count ? x : off_scale

# ---- numbers as text
commas(n) = n < 0 ? '-'.commas(-n) : n < 1000 ? sprintf('%d', n) : commas(n / 1000).sprintf(',%03d', n % 1000)
tenths(x) = (round10 = int(abs(x) * 10 + 0.5), (x < 0 ? '-' : '').commas(round10 / 10).sprintf('.%d', round10 % 10))
short(x) = x >= 100 ? sprintf('%.0f', x) : x >= 10 ? sprintf('%.1f', x) : sprintf('%.2f', x)

# ---- the look: distinct in black and white by point type and dash pattern; colours of Okabe and Ito besides
black = '#000000'; blue = '#0072b2'; orange = '#d55e00'; green = '#009e73'; purple = '#cc79a7'; grey = '#808080'
set style line 1 lc rgb grey   lw 2.5 dt 1      pt 0  ps 0     # formula: a line, no points
set style line 2 lc rgb blue   lw 2   dt 1      pt 6  ps 2.4   # tensors: large open circle
set style line 3 lc rgb black  lw 2   dt 1      pt 1  ps 1.6   # ledger: plus, fits into the circle
set style line 4 lc rgb orange lw 2   dt (6,4)  pt 9  ps 1.4   # driver: filled triangle
set style line 5 lc rgb green  lw 1.5 dt (2,4)  pt 8  ps 1.7   # the lessons' published points: open triangle, dotted line
set style line 6 lc rgb purple lw 2   dt (9,4,2,4) pt 5 ps 1.3
set border 3 lc rgb black lw 1
set tics nomirror out
set grid lc rgb '#c0c0c0' lw 1 dt 1
set key left top Left reverse samplen 3 spacing 1.15 opaque
set offsets 0, 0, 0, 0

font = 'DejaVu Sans'
open_picture(format, width, height) = (format eq 'png' \
    ? sprintf("set terminal pngcairo noenhanced size %d,%d font '%s,13' linewidth 1", width, height, font) \
    : sprintf("set terminal svg noenhanced size %d,%d dynamic font '%s,13' linewidth 1 background rgb 'white'", width, height, font)) \
    .sprintf("; set output '%s/%s.%s'", results, name, format)

# "qwen2.5-0.5b, cpu, bf16", or how many series there are
heading(list) = words(list) == 1 ? word(list, 1) : sprintf('%d series (model, device, dtype)', words(list))

# The i-th of several series of one kind, distinct in black and white too.
point(i) = int(word('9 5 7 13 11 15', (i - 1) % 6 + 1))
colour(i) = word(orange.' '.blue.' '.green.' '.purple.' '.black.' '.grey, (i - 1) % 6 + 1)

# A tic step that gives four to eight tics over a span.
power(x) = 10.0 ** floor(log10(x))
nice(x) = x / power(x) < 2 ? power(x) : x / power(x) < 5 ? 2 * power(x) : 5 * power(x)
tic_step(span) = nice(span / 4.0)
bigger(a, b) = b > a ? b : a   # b may be NaN
smaller(a, b) = b < a ? b : a
