"""Adjectives, determiners, numbers, adverbs, prepositions and conjunctions of the bilingual world.

A line reads: level, English, German. An underscore joins the words of a phrase, and a bar divides it where the languages
divide alike: `in_the|morning = am|Morgen` aligns "in the" with "am" and "morning" with "Morgen".
"""

# Before the noun: level, English, German, the stem that takes endings where it differs, and after = the classes it goes with.
ATTRIBUTIVE = """
1 old alt = person animal thing
1 young jung = person animal
1 small klein = person animal thing
1 big groß = animal thing
1 red rot = coloured
1 black schwarz = animal coloured
1 clever klug = person animal
1 new neu = coloured text tool
1 cold kalt = drink
1 hot heiß = drink
2 tall groß = person
2 friendly freundlich = person animal
2 poor arm = person animal
2 green grün = coloured
2 blue blau = coloured
2 white weiß = animal coloured
2 beautiful schön = person animal thing
2 expensive teuer teur = thing drink
2 cheap billig = thing drink
2 strange seltsam = person animal thing
3 lazy faul = person animal
3 famous berühmt = person text instrument building
3 brave mutig = person animal
3 polite höflich = person
3 wise weise = person
3 rich reich = person
3 brown braun = animal coloured
3 grey grau = animal coloured
3 yellow gelb = coloured
3 tiny winzig = animal thing
3 huge riesig = animal thing
3 ugly hässlich = person animal coloured
3 valuable wertvoll = coloured text tool
3 dark dunkel dunkl = building room garment furniture
3 wonderful wunderbar = person animal thing drink
3 fresh frisch = food drink
3 fragrant duftend = food drink plant
3 lukewarm lauwarm = drink
3 fat dick = animal
3 proud stolz = person animal
"""

# After the verb: what is said of "it". After + stand classes that the adjective would fit at a pinch (see verbs.IT_DOES).
PREDICATIVE = """
1 hungry hungrig = animal
1 tired müde = animal
1 delicious lecker = food drink + animal plant
1 baked gebacken = food + container building
1 salty salzig = food drink
1 knitted gestrickt = garment
1 ironed gebügelt = garment
1 exciting spannend = text + building vehicle
1 handwritten handgeschrieben = text
1 blunt stumpf = tool + text
1 uninhabited unbewohnt = building + room vehicle
1 dilapidated baufällig = building + room vehicle furniture
1 upholstered gepolstert = furniture + vehicle instrument
1 overcrowded überfüllt = vehicle building + room container furniture
1 roadworthy verkehrstüchtig = vehicle
1 varnished lackiert = furniture + vehicle instrument tool device container building
2 thirsty durstig = animal + plant
2 timid scheu = animal
2 sour sauer = food drink
2 wrinkled zerknittert = garment text + animal food plant
2 boring langweilig = text + building room
2 illegible unleserlich = text
2 sharpened geschärft = tool
2 withered verwelkt = plant
2 evergreen immergrün = plant
2 out_of_tune verstimmt = instrument
2 switched_off ausgeschaltet = device + vehicle instrument
2 empty leer = container building + vehicle room furniture device instrument text
2 brimful randvoll = container + vehicle furniture room
2 comfortable bequem = furniture garment + vehicle room building
3 tame zahm = animal
3 obedient gehorsam = animal
3 sleepy schläfrig = animal
3 nutritious nahrhaft = food drink + plant
3 overcooked verkocht = food
3 itchy kratzig = garment + furniture animal
3 fashionable modisch = garment + furniture device vehicle building
3 incomprehensible unverständlich = text + animal device instrument
3 unpublished unveröffentlicht = text
3 draughty zugig = building + room vehicle
3 leafy belaubt = plant
3 leaky undicht = container + vehicle building
3 plugged_in eingesteckt = device + instrument vehicle
3 battery-operated batteriebetrieben = device + tool vehicle instrument
3 tuned gestimmt = instrument + device vehicle
"""

# What is said of persons after the verb.
PERSONAL = """
1 happy glücklich
1 tired müde
1 sad traurig
2 ill krank
2 hungry hungrig
2 nervous nervös
3 grateful dankbar
3 proud stolz
3 jealous eifersüchtig
3 curious neugierig
"""

# English, the German stem, and how an adjective after it ends; - is no determiner at all.
DETERMINERS = """
the der weak
this dies weak
these dies weak
every jed weak
all all weak
a ein mixed
my mein mixed
our unser mixed
his sein mixed
her ihr mixed
many viel strong
some einig strong
- - strong
"""
# What each level draws from, the commonest repeated; the first is the plain one.
SINGULAR = {1: "the the the a a my", 2: "the the the the a a this my our", 3: "the the the the a a this every my our his her"}
PLURAL = {1: "the -", 2: "the the - these many", 3: "the the - - these my our many some all"}

NUMBERS = """
1 two zwei
1 three drei
1 four vier
1 five fünf
1 six sechs
1 seven sieben
1 eight acht
1 nine neun
1 ten zehn
1 eleven elf
1 twelve zwölf
"""

# When, with the tenses it goes with: present, past, perfect, future.
TIMES = """
1 today = heute = present past perfect future modal
1 yesterday = gestern = past
1 now = jetzt = present modal
1 tomorrow = morgen = future modal
2 in_the|morning = am|Morgen = present past future modal
2 in_the|evening = am|Abend = present past future modal
2 sometimes = manchmal = present past
2 every|day = jeden|Tag = present past
3 on|Monday = am|Montag = past future modal
3 on|Sunday = am|Sonntag = past future modal
3 at_night = nachts = present past
3 this|week = diese|Woche = past perfect future modal
3 last|year = letztes|Jahr = past
"""

MANNERS = """
1 quietly leise
1 again wieder
2 happily fröhlich
2 slowly langsam
3 suddenly plötzlich
"""

# The two-way prepositions: English at rest, English in motion, German, and the classes of place.
PLACES = """
1 in = into = in = building vehicle room
1 on = onto = auf = furniture
1 under = under = unter = furniture
1 behind = behind = hinter = building vehicle furniture plant
2 next_to = next_to = neben = building vehicle furniture plant container instrument
3 in_front_of = in_front_of = vor = building vehicle furniture plant
"""

# The tenses in which "when" is wenn, and those in which it is als.
SUBORDINATORS = """
1 because = weil = present past
1 although = obwohl = present past
1 when = wenn = present
1 when = als = past
2 if = wenn = present
2 while = während = present past
3 before = bevor = present past
3 as soon as = sobald = present past
"""
