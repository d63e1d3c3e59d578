# Where the time of a pass goes: one panel per phase with a bar per operation, the longest on top, and in words beside it
# the share of the pass and what the operation reaches of the ceiling that is nearer. The latest setting of each phase.
load 'plots/style.gp'

all = ''; settings = ''
setting(unused) = strcol('phase').'|'.strcol('context').'|'.strcol('batch').'|'.strcol('graphs').'|'.@row_key
stats csv using (all = add_word(all, @row_key), settings = add_word(settings, setting(0)), 0) nooutput
field(s, i) = (cut = s, part = '', (i > 1 ? (cut = cut[strstrt(cut, '|') + 1 : *]) : cut), \
    (i > 2 ? (cut = cut[strstrt(cut, '|') + 1 : *]) : cut), (i > 3 ? (cut = cut[strstrt(cut, '|') + 1 : *]) : cut), \
    cut[1 : strstrt(cut, '|') - 1])

# At most the last four settings: more have no room.
most = 4
first = words(settings) > most ? words(settings) - most + 1 : 1
panels = words(settings) - first + 1
chosen(i) = word(settings, first + i - 1)

# The nearer ceiling, as "71 % of the read ceiling".
of_ceiling(unused) = known(num('percent_of_matrix_ceiling')) && num('percent_of_matrix_ceiling') > num('percent_of_read_ceiling') \
    ? sprintf(', %.0f %% of the matrix ceiling', num('percent_of_matrix_ceiling')) \
    : known(num('percent_of_read_ceiling')) ? sprintf(', %.0f %% of the read ceiling', num('percent_of_read_ceiling')) : ''
said(unused) = sprintf('%s ms, %.1f %%', short(num('time_ms')), num('share_percent')).of_ceiling(0)
heading_of(s) = field(s, 1).', '.commas(int(field(s, 2))).' tokens'.(field(s, 1) eq 'decode' ? ' held' : '') \
    .(field(s, 3) eq '1' ? '' : ', batch '.field(s, 3)).(field(s, 4) eq 'on' ? ', replayed' : '')

# Of the panel being drawn: each row's place from the top, 0 for rows of others.
places = ''; count = 0; longest = 0.0
place(row) = real(word(places, int(row) + 1))
take(s) = setting(0) eq s && strcol('operation') ne 'pass' ? (count = count + 1, longest = bigger(longest, num('time_ms')), count) : 0
height(row) = place(row) > 0 ? count + 1 - place(row) : NaN

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 100 + 380 * panels)
    set multiplot title 'Where the time of a pass goes: '.heading(all)
    set lmargin at screen 0.2; set rmargin at screen 0.95
    set grid noytics
    unset key; unset ytics
    do for [i = 1:panels] {
        places = ''; count = 0; longest = 0.0; set xrange [*:*]; set yrange [*:*]
        stats csv using (places = places.sprintf('%d ', take(chosen(i))), 0) nooutput
        set tmargin at screen 0.94 - (i - 1 + 0.06) * 0.93 / panels; set bmargin at screen 0.94 - (i - 0.17) * 0.93 / panels
        set title heading_of(chosen(i)) offset 0, -0.6
        set xlabel 'ms' offset 0, 0.6
        set xrange [0 : (longest > 0 ? longest : 1) * 1.7]
        set yrange [0.3 : count + 0.7]
        plot csv using (num('time_ms') / 2):(height($0)):(num('time_ms') / 2):(0.36) \
                 with boxxyerror lc rgb blue fs solid 0.45 border lc rgb blue, \
             csv using (0):(height($0)):(strcol('operation')) with labels right offset -0.7, 0 font font.',12', \
             csv using (num('time_ms')):(height($0)):(said(0)) with labels left offset 0.7, 0 font font.',11'
    }
    unset multiplot
    unset output
}
