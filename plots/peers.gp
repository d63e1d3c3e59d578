# kvlab beside other engines, measured in turn in one run: time relative to kvlab's for every setting, and what share of the
# machine's read bandwidth each reaches in decode.
load 'plots/style.gp'

peers = 'kvlab transformers llama.cpp'
setting(unused) = strcol('phase').' '.strcol('tokens').(strcol('batch') eq '1' ? '' : ' x'.strcol('batch'))
names = ''; slowest = 1.0; decodes = 0
compared(unused) = known(num('kvlab_ratio'))
stats csv using (names = compared(0) ? add_word(names, setting(0)) : names, \
    decodes = decodes + known(num('percent_of_read_ceiling')), slowest = bigger(slowest, num('kvlab_ratio')), 0) nooutput
place(s) = (at = 0, sum [i = 1:words(names)] (word(names, i) eq s ? (at = i) : 0), at)
of(p, value) = strcol('peer') eq word(peers, p) && compared(0) ? value : NaN
model = ''; stats csv using (model = strcol('model'), 0) nooutput
tics = ''
do for [i = 1:words(names)] { tics = tics.(i > 1 ? ', ' : '').sprintf("'%s' %d", word(names, i), i) }

do for [format in 'png svg'] {
    eval open_picture(format, 1100, 850)
    set multiplot
    set lmargin 11; set rmargin 9
    set xrange [0.4 : words(names) + 0.6]
    eval 'set xtics rotate by -30 ('.tics.')'
    set boxwidth 0.24
    set key top left

    set origin 0, 0.5; set size 1, 0.5
    set title model.', CPU: time relative to kvlab, measured in turn (lower is faster)'
    set ylabel 'time / kvlab''s time (log)'
    set logscale y 2
    set yrange [0.5 : slowest * 2.5]
    set format x ''
    plot for [p = 1:3] csv using (of(p, place(setting(0)) + 0.26 * (p - 2))):(num('kvlab_ratio')) \
             with boxes fs pattern p lc rgb colour(p) title word(peers, p), \
         for [p = 1:3] csv using (of(p, place(setting(0)) + 0.26 * (p - 2))):(num('kvlab_ratio')):(sprintf('%.1f', num('kvlab_ratio'))) \
             with labels offset 0, 0.6 font font.',9' notitle

    set origin 0, 0; set size 1, 0.52
    unset title
    unset logscale y
    set format x '%g'
    set ylabel 'percent of read bandwidth (decode)'
    set xlabel 'phase, tokens (x batch)'
    set yrange [0 : 120]
    unset key
    plot for [p = 1:3] csv using (of(p, place(setting(0)) + 0.26 * (p - 2))):(given(decodes, num('percent_of_read_ceiling'))) \
             with boxes fs pattern p lc rgb colour(p) notitle
    unset multiplot
    unset output
}
